"""Draws the pictures of docs/, and gives those of benchmarks/results/ the same look.

theme.py has the colours and the ground, canvas.py the shapes; each other module draws one picture.
"""
