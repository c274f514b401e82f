B
zero_pointJ