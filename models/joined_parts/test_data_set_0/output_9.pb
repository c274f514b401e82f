BdorefaJÀiæOÂFDÉÁàÝŒÁ!¢[BàÝKÁ«ª‰AÏÌ>ÁÛÝ[A¥çB>é@µ­AAF@·ªéÀþ+bÁRÂ–ƒ%ÂyHÆBæ³ÕAÝ¹â¿¿gðAÏ7WB»¬åÀg9ÂqùÁ…†7ÂOtÌÀ!]òA%7YB
¼AÂƒRã@=eBòÿ¥AÙJ†ÂÇ0Âqq^A8VrBü]¯BK¢ðÁ¼Õ’ÂüíB&_Bq¡¯BâgAF!¿BµEÂvOš@—ÒB‰s‘Âí—Â‰úŒÂ¯ŒXBÓñAuý‹A‹©ÜA‰Ú¿ÙšhÂÊ„ÁªAUŒAVYaA]4'BjÑ‰A\Aà´Á“ª7B>Ä†BBRCÂï
tÁ}Y~@òÒBÛ½³Á‰¥Bø†‰@*yÁ:rÀYtø@_ôµA)bÂ­ŸºAMŸ$B