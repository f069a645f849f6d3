#!/bin/sh
# Emulates several hosts on one machine: network namespaces on one bridge. Needs root.
#   netlab.sh up N [LINK [FLOW]]   makes hosts 0 .. N-1; host I has the address 10.86.0.(I+1);
#                             LINK caps what a host sends, in Mbit/s, FLOW each of its connections
#   netlab.sh down            removes them
#   netlab.sh at I COMMAND... runs a command on host I
#   netlab.sh rsh ADDRESS LINE   the same, in the form of a remote shell (for PERSEUSRUN_RSH)
#   netlab.sh unplug I        disconnects host I, without notifying its peers
#   netlab.sh plug I          connects it again
#   netlab.sh slow I PORT PEER_PORT RATE   caps what host I sends on one connection, in Mbit/s
#   netlab.sh unslow I        removes that cap
#   netlab.sh receive I RATE  caps what host I receives, in Mbit/s
# The variable NETLAB names the lab (default: perseus), so that several can be up at the same time.
set -eu
prefix=${NETLAB:-perseus}
bridge=$prefix-br

# A cloud's network caps each connection, identified by addresses and ports, so a packet's class is
# a hash of these. A classic BPF program computes it: u32 can only look at one port, and all
# connections that a listener has accepted send from one port. With 1,024 classes, two of 8
# connections share a class in 3 % of cases. All packets other than TCP over IPv4 share a class of
# their own.
caps() {
  link=$1
  flow=${2:-$1}
  shape="quantum 60000" # bytes a turn; HTB's own choice is too large, and makes it warn
  echo "qdisc add dev eth0 root handle 1: htb default 3"
  echo "class add dev eth0 parent 1: classid 1:1 htb rate ${link}mbit burst 128k cburst 128k $shape"
  echo "class add dev eth0 parent 1:1 classid 1:2 htb rate 100kbit ceil ${flow}mbit $shape"
  echo "class add dev eth0 parent 1:1 classid 1:3 htb rate 100kbit ceil ${link}mbit $shape"
  class=1024
  while [ $class -lt 2048 ]; do
    printf 'class add dev eth0 parent 1:1 classid 1:%x htb' $class
    echo " rate 100kbit ceil ${flow}mbit burst 64k cburst 64k $shape"
    class=$((class + 1))
  done
  # if (IPv4 && TCP) return 0x10400 | (destination + ports) * 2654435769 >> 22; else return 0;
  # (Knuth's multiplicative hash; IP options would move the ports, but TCP does not send any)
  echo "filter add dev eth0 parent 1: protocol ip prio 2 bpf bytecode \"13,\
40 0 0 12,21 0 10 2048,48 0 0 23,21 0 8 6,32 0 0 30,7 0 0 0,32 0 0 34,12 0 0 0,\
36 0 0 2654435769,116 0 0 22,68 0 0 66560,22 0 0 0,6 0 0 0\""
}

# Programs that look up their own host name must find an address that others can reach. The
# machine's address, which all namespaces would find, is not. `ip netns exec` binds these files.
names() {
  mkdir -p "/etc/netns/$prefix$1"
  echo "127.0.0.1 localhost" >"/etc/netns/$prefix$1/hosts"
  host=0
  while [ $host -lt "$2" ]; do
    echo "10.86.0.$((host + 1)) $prefix$host" >>"/etc/netns/$prefix$1/hosts"
    host=$((host + 1))
  done
}

# Runs a command on host $1 by exec; the host has its own name there.
enter() {
  name=$prefix$1
  shift
  exec ip netns exec "$name" unshare --uts \
    sh -c 'echo "$0" >/proc/sys/kernel/hostname; exec "$@"' "$name" "$@"
}

case ${1:-} in
up)
  ip link add $bridge type bridge
  ip link set $bridge up
  i=0
  while [ $i -lt "$2" ]; do
    names $i "$2"
    ip netns add $prefix$i
    ip link add $prefix-v$i type veth peer name eth0 netns $prefix$i
    ip link set $prefix-v$i master $bridge up
    ip -n $prefix$i address add 10.86.0.$((i + 1))/24 dev eth0
    ip -n $prefix$i link set eth0 up
    ip -n $prefix$i link set lo up
    # shellcheck disable=SC2086 # FLOW may be absent
    [ -z "${3:-}" ] || caps "$3" ${4:-} | ip netns exec $prefix$i tc -batch -
    i=$((i + 1))
  done
  ;;
down)
  # Deleting a namespace also deletes its links, but asynchronously.
  for link in $(ip -o link | sed -n "s/^[0-9]*: \($prefix-v[0-9]*\)@.*/\1/p"); do
    ip link delete "$link"
  done
  for namespace in $(ip netns list | sed -n "s/^\($prefix[0-9]*\)\b.*/\1/p"); do
    ip netns delete "$namespace"
    rm -rf "/etc/netns/$namespace"
  done
  ip link delete $bridge 2>/dev/null || true
  ;;
at)
  host=$2
  shift 2
  enter "$host" "$@"
  ;;
rsh)
  enter "$((${2##*.} - 1))" sh -c "$3"
  ;;
unplug)
  ip link set "$prefix-v$2" down
  ;;
plug)
  ip link set "$prefix-v$2" up
  ;;
slow)
  at="ip netns exec $prefix$2"
  $at tc class change dev eth0 parent 1:1 classid 1:2 htb rate 100kbit ceil "${5}mbit"
  $at tc filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff \
    match ip sport "$3" 0xffff match ip dport "$4" 0xffff flowid 1:2
  ;;
unslow)
  ip netns exec "$prefix$2" tc filter delete dev eth0 parent 1: prio 1
  ;;
receive)
  tc qdisc replace dev "$prefix-v$2" root tbf rate "${3}mbit" burst 256k latency 20ms
  ;;
*)
  sed -n '2,14s/^# //p' "$0" >&2
  exit 2
  ;;
esac
