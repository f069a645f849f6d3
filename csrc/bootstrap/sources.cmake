set(SOURCES hmac.cc sha256.cc)
set(NEEDS base)
