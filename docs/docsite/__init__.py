"""What the documentation site adds to Sphinx. docs/conf.py lists these modules as extensions."""
