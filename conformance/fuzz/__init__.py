"""Any geometry: the references against laws, and a stack's loader against the references, down to the smallest break.

No part of the gate: that a stack breaks at another geometry is no NO-GO for this one.
"""
