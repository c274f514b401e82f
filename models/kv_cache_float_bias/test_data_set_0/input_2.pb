
B
past_scaleJ
/*›/t,1Z1]2f1q%¹0<1 1ž.m./