
Bk_scaleJá$