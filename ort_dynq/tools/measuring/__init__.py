"""Shared by all measurements: sessions, inputs, data, timing, profiles, progress and plain results."""
