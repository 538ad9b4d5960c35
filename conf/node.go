package conf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// loopback reports whether an identity is, or begins with, a loopback host.
func loopback(node string) bool {
	host, _, err := net.SplitHostPort(node)
	if err != nil {
		host = node
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && (ip.IsLoopback() || ip.IsUnspecified())
}

// DeriveNode returns the identity <ip>:<port> for an instance without snowflake.node. listen is the first RESP
// listener's address; when it is on every interface, or no TCP address at all, the IP is the first of interfaces (as
// net.InterfaceAddrs returns them) that other machines can reach, IPv4 before IPv6, as Leaf does it. It is an error
// that names snowflake.node when no IP or no port is left.
func DeriveNode(listen net.Addr, interfaces []net.Addr) (string, error) {
	at, err := netip.ParseAddrPort(listen.String())
	if err != nil || at.Port() == 0 {
		return "", fmt.Errorf("%s gives no port for an identity; set snowflake.node", listen)
	}
	ip := at.Addr().Unmap()
	if ip.IsLoopback() {
		return "", fmt.Errorf("%s is a loopback address, which every machine has; listen on another or set snowflake.node", listen)
	}
	if ip.IsUnspecified() {
		ip = netip.Addr{}
		for _, a := range interfaces {
			prefix, err := netip.ParsePrefix(a.String())
			candidate := prefix.Addr().Unmap()
			if err != nil || candidate.IsLoopback() || candidate.IsLinkLocalUnicast() || ip.IsValid() && (ip.Is4() || candidate.Is6()) {
				continue
			}
			ip = candidate
		}
		if !ip.IsValid() {
			return "", errors.New("no interface has an address that other machines can reach; set snowflake.node")
		}
	}
	return netip.AddrPortFrom(ip.WithZone(""), at.Port()).String(), nil
}
