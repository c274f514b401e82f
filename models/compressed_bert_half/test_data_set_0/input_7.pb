
Bv_scaleJ9%