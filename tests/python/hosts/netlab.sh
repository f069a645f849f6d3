#!/bin/sh
# Several hosts on one machine: network namespaces on one bridge. Needs root.
#   netlab.sh up N            makes hosts 0 .. N-1; host I has the address 10.86.0.(I+1)
#   netlab.sh down            removes them
#   netlab.sh at I COMMAND... runs a command on host I
#   netlab.sh rsh ADDRESS LINE   the same, as a remote shell does it (for PERSEUSRUN_RSH)
#   netlab.sh unplug I        cuts host I off, without a word to its peers
#   netlab.sh plug I          and connects it again
set -eu
prefix=perseus
bridge=perseus-br

case ${1:-} in
up)
  ip link add $bridge type bridge
  ip link set $bridge up
  i=0
  while [ $i -lt "$2" ]; do
    ip netns add $prefix$i
    ip link add $prefix-v$i type veth peer name eth0 netns $prefix$i
    ip link set $prefix-v$i master $bridge up
    ip -n $prefix$i address add 10.86.0.$((i + 1))/24 dev eth0
    ip -n $prefix$i link set eth0 up
    ip -n $prefix$i link set lo up
    i=$((i + 1))
  done
  ;;
down)
  # A namespace's end takes its links along, but later.
  for link in $(ip -o link | sed -n "s/^[0-9]*: \($prefix-v[0-9]*\)@.*/\1/p"); do
    ip link delete "$link"
  done
  for namespace in $(ip netns list | sed -n "s/^\($prefix[0-9]*\)\b.*/\1/p"); do
    ip netns delete "$namespace"
  done
  ip link delete $bridge 2>/dev/null || true
  ;;
at)
  host=$2
  shift 2
  exec ip netns exec "$prefix$host" "$@"
  ;;
rsh)
  exec ip netns exec "$prefix$((${2##*.} - 1))" sh -c "$3"
  ;;
unplug)
  ip link set "$prefix-v$2" down
  ;;
plug)
  ip link set "$prefix-v$2" up
  ;;
*)
  sed -n '2,8s/^# //p' "$0" >&2
  exit 2
  ;;
esac
