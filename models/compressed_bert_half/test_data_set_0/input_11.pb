
Bp_scaleJ