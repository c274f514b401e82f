"""The version of the package, for pyproject.toml, the native library and all files of the package."""

__version__ = "0.1.0"
