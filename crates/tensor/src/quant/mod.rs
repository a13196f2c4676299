//! Quantised block formats, one file each.
