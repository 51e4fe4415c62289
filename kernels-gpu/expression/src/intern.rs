//! Hash-consing: equal nodes are one.

use std::collections::HashMap;

use super::check::type_of;
use super::{Id, Node, Param, Tensor, Type};

/// Collects nodes. Equal ones are merged, and each is simplified before it is added, unless all stay as they are.
pub(super) struct Interner {
    nodes: Vec<Node>,
    types: Vec<Type>,
    ids: HashMap<Node, Id>,
    /// The list that the nodes index.
    pub params: Vec<Param>,
    /// The list that the nodes index.
    pub tensors: Vec<Tensor>,
    simplifies: bool,
}

impl Interner {
    /// One that simplifies.
    pub fn new(params: &[Param], tensors: &[Tensor]) -> Interner {
        Interner {
            simplifies: true,
            ..Interner::verbatim(params, tensors)
        }
    }

    /// One that takes nodes as they are.
    pub fn verbatim(params: &[Param], tensors: &[Tensor]) -> Interner {
        Interner {
            nodes: Vec::new(),
            types: Vec::new(),
            ids: HashMap::new(),
            params: params.to_vec(),
            tensors: tensors.to_vec(),
            simplifies: false,
        }
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node of a number.
    pub fn node(&self, id: Id) -> Node {
        self.nodes[id as usize]
    }

    /// The type of a node.
    pub fn ty(&self, id: Id) -> Type {
        self.types[id as usize]
    }

    /// The number of a node whose value is that of `node`, whose operands are in.
    pub fn add(&mut self, node: Node) -> Id {
        if self.simplifies {
            self.add_simplified(node)
        } else {
            self.keep(node)
        }
    }

    /// The number of this node, not simplified.
    pub fn keep(&mut self, node: Node) -> Id {
        let node = node.mapped(&self.tensors, |id| id);
        if let Some(&id) = self.ids.get(&node) {
            return id;
        }
        let id = self.nodes.len() as Id;
        let of = |id: Id| self.types[id as usize];
        // Who adds nodes has checked their types.
        let ty = type_of(node, &self.params, &self.tensors, of).unwrap_or(Type::F32);
        self.nodes.push(node);
        self.types.push(ty);
        self.ids.insert(node, id);
        id
    }

    /// Adds nodes, at least one, each made of those before it: returns the number of the last.
    pub fn copy(&mut self, nodes: &[Node]) -> Id {
        self.copy_all(nodes).last().copied().unwrap_or_default()
    }

    /// Adds nodes, each made of those before it: returns the new number of each.
    pub fn copy_all(&mut self, nodes: &[Node]) -> Vec<Id> {
        let mut ids: Vec<Id> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let node = node.mapped(&self.tensors, |id| ids[id as usize]);
            ids.push(self.add(node));
        }
        ids
    }

    /// The nodes that `root` needs, which becomes the last. Their order stays.
    pub fn reachable(&self, root: Id) -> Vec<Node> {
        let mut is_needed = vec![false; root as usize + 1];
        is_needed[root as usize] = true;
        for id in (0..=root as usize).rev() {
            if is_needed[id] {
                self.nodes[id].operands(&self.tensors, |id| is_needed[id as usize] = true);
            }
        }
        let mut ids = vec![0; root as usize + 1];
        let mut nodes: Vec<Node> = Vec::new();
        for (id, node) in self.nodes.iter().enumerate().take(root as usize + 1) {
            if is_needed[id] {
                ids[id] = nodes.len() as Id;
                nodes.push(node.mapped(&self.tensors, |id| ids[id as usize]));
            }
        }
        nodes
    }
}
