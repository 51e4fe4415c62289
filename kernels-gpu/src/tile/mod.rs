//! Tiles as types, and the operations on them: the vocabulary of kernels.
//!
//! A tile of global memory is copied to shared memory ([`copy`]), multiplied from there ([`matmul`]) into a tile of
//! registers ([`register`]), and goes back the same way. Which register of which lane holds which element is
//! written down once, in [`fragment`].

pub mod element;

pub mod fragment;

pub mod ring;

pub mod shared;

pub mod register;

pub mod matmul;

pub mod products;

pub mod softmax;

pub mod tf32;

pub mod global;

pub mod copy;

pub mod tensor_map;

pub mod warpgroup;
