"""Texts of errors, which programs compare."""

__all__ = ["RESET_LIMIT_EXCEEDED_MESSAGE"]

#: Takes the limit, by `format`. Programs use the result as a regular expression, which matches it.
RESET_LIMIT_EXCEEDED_MESSAGE = "the number of resets during elastic job exceeded limit of {}"
