"""The folder that the drop-in puts on the module search path; see perseus.dropin."""
