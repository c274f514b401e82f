"""Programs: the nodes around a quantization that no specialised operator computes, as one RowProgram.

rows.py says which values have the shape of the rows, steps.py which steps a node is, and region.py selects the nodes.
"""
