"""What all measurements share: sessions, inputs, data, timing, profiles, progress and plain results."""
