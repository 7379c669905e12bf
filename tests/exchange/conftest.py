"""Fixtures of tests of exchanges."""

from tests.support.nccl import nccl

__all__ = ["nccl"]
