package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

// guardCertificate makes a certificate for 127.0.0.1 and who trusts it.
func guardCertificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "test"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// startToyTLS adds a TLS listener to a toy server.
func startToyTLS(t *testing.T, s *toy) (addr string, client *tls.Config, served chan struct{}) {
	t.Helper()
	cert, pool := guardCertificate(t)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served = s.serve(s.g.Listener("tls", tls.NewListener(inner, &tls.Config{Certificates: []tls.Certificate{cert}})))
	return inner.Addr().String(), &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}, served
}

func TestGuardTLS(t *testing.T) {
	for _, lane := range []bool{false, true} {
		s := startToy(t, guardConfig{MaxClients: 4}, func(s *toy) { s.lane = lane })
		addr, config, served := startToyTLS(t, s)

		// Clients that say nothing, or nothing of TLS, hinder nobody.
		silent := dial(t, addr)
		eventually(t, "the silent one is in", func() bool { return s.g.Clients() == 1 })
		plain := dial(t, addr)
		io.WriteString(plain, "PING\r\n")
		if b, _ := io.ReadAll(plain); strings.Contains(string(b), "PONG") {
			t.Errorf("a plain client was answered: %q", b)
		}
		eventually(t, "the plain one is out", func() bool { return s.g.Clients() == 1 })

		c := tls.Client(dial(t, addr), config)
		say(t, c, incrs(2, "k")+"ECHO a\r\n"+incrs(1, "k"), ":1\r\n:2\r\n$1\r\na\r\n:3\r\n")
		long := strings.Repeat("e", 60000)
		go io.WriteString(c, "*2\r\n$4\r\nECHO\r\n$60000\r\n"+long+"\r\n"+incrs(5000, "k"))
		hear(t, c, "$60000\r\n"+long+"\r\n"+numbers(4, 5003))

		bad := tls.Client(dial(t, addr), config)
		say(t, bad, incrs(1, "k")+"*1\r\n!\r\n", ":5004\r\n"+expected("!"))
		over(t, bad, "")
		bad.Close()
		eventually(t, "it is out", func() bool { return s.g.Clients() == 2 })

		// One too many is turned away without a handshake, so without a word.
		s.g.SetMaxClients(2)
		if err := tls.Client(dial(t, addr), config).Handshake(); err == nil {
			t.Error("a handshake with one client too many")
		}
		s.g.SetMaxClients(4)

		if err := s.g.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		<-served
		over(t, c, "")
		if b, _ := io.ReadAll(silent); len(b) != 0 {
			t.Errorf("the silent one was told %q", b)
		}
	}
}

func TestGuardTLSHandshakeTimeout(t *testing.T) {
	s := startToy(t, guardConfig{HandshakeTimeout: 500 * time.Millisecond, IdleTimeout: time.Hour})
	addr, config, served := startToyTLS(t, s)
	silent := dial(t, addr)
	if b, err := io.ReadAll(silent); len(b) != 0 || err != nil {
		t.Errorf("got %q, %v", b, err)
	}
	eventually(t, "the reason", func() bool {
		err := s.lastEnd()
		return err != nil && strings.HasPrefix(err.Error(), "TLS handshake: ")
	})
	// It is the handshake's alone: what is connected stays.
	c := tls.Client(dial(t, addr), config)
	say(t, c, "PING\r\n", "+PONG\r\n")
	time.Sleep(600 * time.Millisecond) // the passing of time is what is tested
	say(t, c, "PING\r\n", "+PONG\r\n")
	s.g.Drain(t.Context())
	<-served
}

// Rejecting in redcon's accept callback writes; before the handshake that must
// not wait for the client, since it happens in the accept loop.
func TestGuardTLSWriteBeforeHandshake(t *testing.T) {
	cert, _ := guardCertificate(t)
	client, server := net.Pipe()
	defer client.Close()
	g := newGuard(guardConfig{})
	c := newGuardConn(g, nil, tls.Server(server, &tls.Config{Certificates: []tls.Certificate{cert}}))
	if n, err := c.Write([]byte("-ERR no\r\n")); n != 0 || err != errGuardEarly {
		t.Errorf("wrote %d bytes, %v", n, err)
	}
	if n, err := c.Write(nil); n != 0 || err != nil {
		t.Errorf("an empty write: %d, %v", n, err)
	}
	c.Close()
}
