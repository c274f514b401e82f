"""Programs: what stands around a quantization and is no specialised operator, as one RowProgram.

rows.py tells which values have the shape of the rows, steps.py which steps a node is, and region.py selects the nodes.
"""
