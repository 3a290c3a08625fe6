"""The one error of the model store."""


class ModelError(ValueError):
    """A model cannot be fetched, read or used. The message says what, the value, and what to do."""
