//! The lock designs that people use, as models on a simulated world, to be compared.
