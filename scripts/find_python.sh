#!/bin/sh
# Prints the Python to build with: $PYTHON if set, else the first of the usual names that is 3.10 or newer.
recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10 python3.14}; do
  found=$(command -v "$candidate") || continue
  if recent "$found"; then
    echo "$found"
    exit 0
  fi
  old="$old $found ($("$found" -V 2>&1 || echo 'does not run'));"
done

{
  echo "make: Perseus needs Python 3.10 or newer; ${old:+found only$old}${old:-none was found.}"
  echo "make: on Debian or Ubuntu: apt-get install python3 python3-venv python3-dev"
  echo "make: or name one that lies elsewhere: make PYTHON=/path/to/python3"
} >&2
exit 1
