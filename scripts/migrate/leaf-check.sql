-- What Redleaf would not take as it stands in a Leaf database. No rows: point Redleaf at it. Changes nothing.
--
--   mysql leaf < scripts/migrate/leaf-check.sql
SELECT 'leaf_alloc' AS what, CONCAT('ENGINE is ', ENGINE) AS is_so, 'Redleaf refuses any but InnoDB: ALTER TABLE leaf_alloc ENGINE=InnoDB' AS do_this
  FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'leaf_alloc' AND ENGINE <> 'InnoDB'
UNION ALL
SELECT 'leaf_alloc.max_id', CONCAT('type is ', COLUMN_TYPE), 'Redleaf refuses any but BIGINT: ALTER TABLE leaf_alloc MODIFY max_id BIGINT NOT NULL DEFAULT 1'
  FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'leaf_alloc' AND COLUMN_NAME = 'max_id' AND DATA_TYPE <> 'bigint'
UNION ALL
SELECT biz_tag, CONCAT('step is ', COALESCE(step, 'NULL')), 'set a step of 1 or more: the fewest IDs that one refill takes'
  FROM leaf_alloc WHERE step IS NULL OR step < 1
UNION ALL
SELECT biz_tag, CONCAT('step is ', step), 'above segment.max_step (1000000): lower it, or raise the setting'
  FROM leaf_alloc WHERE step > 1000000
UNION ALL
SELECT biz_tag, CONCAT('max_id is ', COALESCE(max_id, 'NULL')), 'set it to 1 or more, above every ID that was given out'
  FROM leaf_alloc WHERE max_id IS NULL OR max_id < 1
UNION ALL
SELECT biz_tag, 'the name is empty, has a space at an end or a control character, or is longer than 128 bytes of UTF-8', 'clients can''t name it in Redleaf: make a row of another name above its max_id'
  FROM leaf_alloc WHERE biz_tag = '' OR LENGTH(biz_tag) <> LENGTH(TRIM(biz_tag)) OR HEX(CONVERT(biz_tag USING utf8mb4)) REGEXP '^(..)*([01].|7F)' OR LENGTH(CONVERT(biz_tag USING utf8mb4)) > 128;
