package migrate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"redleaf/scripts/process"
	"redleaf/scripts/services"
)

// TestFromLeafZnodes takes a Leaf fleet's worker numbers over in place: the instance that has a Leaf node's identity gets its number,
// a new one gets none that a Leaf node has.
func TestFromLeafZnodes(t *testing.T) {
	t.Parallel() // it waits ten seconds for the Leaf node to show no life
	ensemble := services.StartZooKeeper(t, services.ZooKeeperOptions{})
	conn, _, err := zk.Connect(ensemble.ServerList(), 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	open := zk.WorldACL(zk.PermAll)
	for _, path := range []string{"/snowflake", "/snowflake/orders", "/snowflake/orders/forever"} {
		if _, err := conn.Create(path, nil, 0, open); err != nil {
			t.Fatal(err)
		}
	}
	// As Leaf registers: a persistent sequential node, its data renewed every 3 s while it runs. These two have stopped.
	now := time.Now().UnixMilli()
	for i, ip := range []string{"10.9.8.6", "10.9.8.7"} {
		data := fmt.Sprintf(`{"ip":"%s","port":"8080","timestamp":%d}`, ip, now)
		made, err := conn.Create("/snowflake/orders/forever/"+ip+":8080-", []byte(data), zk.FlagSequence, open)
		if err != nil || !strings.HasSuffix(made, fmt.Sprintf("-%010d", i)) {
			t.Fatalf("%s %v", made, err)
		}
	}
	settings := []string{"segment.store=off", "snowflake.registry=zookeeper", "snowflake.zookeeper.servers=" + ensemble.Servers(), "snowflake.zookeeper.name=orders"}
	if code, log := process.RunToExit(t, process.Options{Set: append(settings, "snowflake.node=10.9.8.7:8080"), Args: []string{"-bootstrap"}}); code != 0 {
		t.Fatalf("-bootstrap: exit code %d\n%s", code, log)
	}
	heir := process.Start(t, process.Options{Name: "heir", Set: append(settings, "snowflake.node=10.9.8.7:8080"), NoWait: true})
	fresh := process.Start(t, process.Options{Name: "fresh", Set: append(settings, "snowflake.node=10.9.8.9:8080")})
	heir.WaitReady()
	for p, want := range map[*process.Process]string{heir: "1", fresh: "2"} {
		if got := strings.Split(p.Do("SNOWFLAKE.INFO"), "\n"); got[0] != "worker" || got[1] != want {
			t.Errorf("%s has worker %s, want %s", p.Instance(), got[1], want)
		}
		status, id := p.Get("/api/snowflake/get/orders")
		if status != 200 {
			t.Errorf("%d %s", status, id)
		}
		if _, parts := p.Get("/decodeSnowflakeId?snowflakeId=" + id); !strings.HasPrefix(parts, `{"workerId":"`+want+`",`) {
			t.Errorf("%s is of %s, want worker %s", id, parts, want)
		}
	}
}
