"""The laws that hold for every method, as a check that also outside authors can run on theirs.

>>> from drcil.testing import check_method
>>> check_method("replay", laws=["memory"])  # raises BrokenLaw if one does not hold
"""

from .laws import LAWS, BrokenLaw, check_method

__all__ = ["LAWS", "BrokenLaw", "check_method"]
