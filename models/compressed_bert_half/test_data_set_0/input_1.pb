
Bq_scaleJ]%