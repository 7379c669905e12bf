"""Version of the program, looked up once."""

from importlib.metadata import version

__version__ = version("mgspmv")
