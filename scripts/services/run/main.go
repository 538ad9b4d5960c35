// Command run starts servers as the tests have them, prints how to reach them, and stops them at Ctrl-C or SIGTERM:
//
//	go run ./scripts/services/run mariadb zookeeper3
//
// It is for trying things by hand. Servers: mariadb, replica (with its primary), galera, zookeeper, zookeeper3, redis.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"redleaf/scripts/services"
)

// session stands in for a test: what is started in it ends with it.
type session struct {
	cleanups []func()
	failed   bool
}

func (s *session) Helper()                 {}
func (s *session) Name() string            { return "run" }
func (s *session) Failed() bool            { return s.failed }
func (s *session) Cleanup(f func())        { s.cleanups = append(s.cleanups, f) }
func (s *session) Logf(f string, a ...any) { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (s *session) Errorf(f string, a ...any) {
	s.failed = true
	s.Logf(f, a...)
}
func (s *session) Fatalf(f string, a ...any) {
	s.Errorf(f, a...)
	s.end()
	os.Exit(1)
}

func (s *session) end() {
	for len(s.cleanups) > 0 {
		f := s.cleanups[len(s.cleanups)-1]
		s.cleanups = s.cleanups[:len(s.cleanups)-1]
		f()
	}
}

const schema = "CREATE TABLE leaf_alloc (biz_tag VARCHAR(128) COLLATE utf8mb4_bin NOT NULL PRIMARY KEY," +
	" max_id BIGINT NOT NULL DEFAULT 1, step INT NOT NULL DEFAULT 1000, description VARCHAR(256)," +
	" update_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP) ENGINE=InnoDB"

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: run mariadb|replica|galera|zookeeper|zookeeper3|redis ...")
		os.Exit(2)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	s := &session{}
	for _, name := range os.Args[1:] {
		start(s, name)
	}
	fmt.Println("# Ctrl-C stops them")
	<-stop
	s.end()
}

func start(s *session, name string) {
	export := func(name, value string) { fmt.Printf("export %s='%s'\n", name, value) }
	database := func(m *services.MariaDB) {
		m.Exec(schema)
		m.Exec("INSERT INTO leaf_alloc (biz_tag) VALUES ('order')")
		fmt.Printf("# mariadb -uroot -h127.0.0.1 -P%d %s\n", m.Port(), m.Database())
	}
	create := services.MariaDBOptions{Create: true}
	switch name {
	case "mariadb":
		m := services.StartMariaDB(s, create)
		database(m)
		export("REDLEAF_SEGMENT_STORE", "mysql")
		export("REDLEAF_SEGMENT_MYSQL_DSN", m.DSN("", ""))
	case "replica":
		create.Binlog = true
		m := services.StartMariaDB(s, create)
		r := services.StartReplica(s, m)
		database(m)
		r.Sync()
		export("REDLEAF_SEGMENT_STORE", "mysql")
		export("REDLEAF_SEGMENT_MYSQL_DSN", m.DSN("", ""))
		fmt.Printf("# replica: mariadb -uroot -h127.0.0.1 -P%d %s\n", r.Port(), r.Database())
	case "galera":
		g := services.StartGalera(s, 3, create)
		database(g.Nodes[0])
		export("REDLEAF_SEGMENT_STORE", "mysql")
		export("REDLEAF_SEGMENT_MYSQL_DSN", fmt.Sprintf(`["%s", "%s", "%s"]`,
			g.Nodes[0].DSN("", ""), g.Nodes[1].DSN("", ""), g.Nodes[2].DSN("", "")))
	case "zookeeper", "zookeeper3":
		o := services.ZooKeeperOptions{Nodes: 1}
		if name == "zookeeper3" {
			o.Nodes = 3
		}
		z := services.StartZooKeeper(s, o)
		export("REDLEAF_SNOWFLAKE_REGISTRY", "zookeeper")
		export("REDLEAF_SNOWFLAKE_ZOOKEEPER_SERVERS", z.Servers())
	case "redis":
		r := services.StartRedis(s)
		fmt.Printf("# redis-cli -u redis://%s\n", r.Addr())
	default:
		s.Fatalf("unknown server %q: use mariadb, replica, galera, zookeeper, zookeeper3 or redis", name)
	}
}
