package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync/atomic"
)

// Certificates serves TLS from files that may be replaced while the server runs: Reload reads them again, and connections made
// later use what it read. Safe for concurrent use.
type Certificates struct {
	cert, key, clientCA string
	current             atomic.Pointer[tls.Config]
}

// LoadCertificates reads the PEM files named by tls.cert, tls.key and, for mutual TLS, tls.client_ca ("" = none).
func LoadCertificates(cert, key, clientCA string) (*Certificates, error) {
	c := &Certificates{cert: cert, key: key, clientCA: clientCA}
	return c, c.Reload()
}

// Reload reads the files again. On an error what was read before stays in force.
func (c *Certificates) Reload() error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("tls.cert %s and tls.key %s: %w", c.cert, c.key, err)
	}
	next := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if c.clientCA != "" {
		pem, err := os.ReadFile(c.clientCA)
		if err != nil {
			return fmt.Errorf("tls.client_ca: %w", err)
		}
		next.ClientCAs = x509.NewCertPool()
		if !next.ClientCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("tls.client_ca %s holds no certificate in PEM form", c.clientCA)
		}
		next.ClientAuth = tls.RequireAndVerifyClientCert
	}
	c.current.Store(next)
	return nil
}

// Config is for listeners of the Redis protocol: it asks for the files as last read at each handshake.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return c.current.Load(), nil
		},
	}
}

// HTTPConfig is Config for the HTTP listener, which asks nobody for a certificate: probes and Prometheus have none, and who may
// draw IDs there is decided by name and password.
func (c *Certificates) HTTPConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &c.current.Load().Certificates[0], nil
		},
	}
}
