"""The Python API: everything a user calls, composed from the parts."""
