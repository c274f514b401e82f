"""Rules that fuse what stands between products: they change the last bits of floats, and run only if `fuse` is set."""
