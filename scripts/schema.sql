-- Tables of Redleaf's segment engine, for a new deployment on MySQL 5.7+ or MariaDB 10.2+.
-- Leaf's own leaf_alloc works as it is: then only redleaf_server is needed, and Redleaf makes that by itself if it may.
--
--   mysql leaf < scripts/schema.sql
--
-- Give the service a plain account. One with SUPER, or with all privileges on *.*, writes on a read-only replica too:
--
--   CREATE USER 'redleaf'@'%' IDENTIFIED BY '…';
--   GRANT SELECT, INSERT, UPDATE ON leaf.* TO 'redleaf'@'%';     -- INSERT only where Redleaf makes tags
--
-- If a backup of this database is ever put back, or a replica takes over, redleaf_server is how every instance sees it: back it
-- up and replicate it together with leaf_alloc.

-- The columns and their order are Leaf's. biz_tag has a binary collation here: with any other one 'order' and 'Order' would be
-- the same row, and a list of tags could not be read in order from the index. utf8mb4 holds every name Redleaf accepts.
CREATE TABLE IF NOT EXISTS leaf_alloc (
  biz_tag     VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  max_id      BIGINT       NOT NULL DEFAULT 1,  -- the next ID that nobody owns
  step        BIGINT       NOT NULL,
  description VARCHAR(256) CHARACTER SET utf8mb4 DEFAULT NULL,
  update_time TIMESTAMP    NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  PRIMARY KEY (biz_tag)
) ENGINE=InnoDB;

-- One row for each table of tags, made and kept by Redleaf. Never write it by hand, and never delete it.
CREATE TABLE IF NOT EXISTS redleaf_server (
  name     VARCHAR(64)  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
  history  VARCHAR(64)  CHARACTER SET ascii NOT NULL,  -- names this line of data; floors belong to it
  epoch    BIGINT       NOT NULL,                      -- how often the data were seen to go back
  beat     BIGINT       NOT NULL,                      -- raised by every instance; lower than seen = the data went back
  base     BIGINT       NOT NULL,                      -- tags made by INCR start here: lost tags may have used what is below
  identity VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,  -- the server the data were last on
  since    DATETIME(6)  NULL                           -- when they last went back, UTC
) ENGINE=InnoDB;
