//! Programs through ptxas.
