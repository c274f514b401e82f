
Bpast_scalesJ2Ü.A2~&08-21†)Ÿ1A/Î1q.à-1N2