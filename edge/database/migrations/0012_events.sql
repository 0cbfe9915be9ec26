CREATE TABLE `event_outbox` (
	`seq` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`id` text DEFAULT (lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-' || substr('89ab', 1 + (abs(random()) % 4), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))) NOT NULL,
	`type` text NOT NULL,
	`project_id` text NOT NULL,
	`tenant_id` text NOT NULL,
	`branch_names` text NOT NULL,
	`machine_id` text,
	`data` text NOT NULL,
	`created_at` integer DEFAULT (cast(unixepoch('subsec') * 1000 as integer)) NOT NULL
);
--> statement-breakpoint
CREATE INDEX `event_outbox_by_project` ON `event_outbox` (`project_id`,`seq`);--> statement-breakpoint
CREATE TABLE `webhooks` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`project_id` text,
	`url` text NOT NULL,
	`events` text NOT NULL,
	`key_id` text NOT NULL,
	`sealed_secret` text NOT NULL,
	`disabled_at` integer,
	`created_by` text NOT NULL,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE INDEX `webhooks_by_tenant` ON `webhooks` (`tenant_id`,`created_at`,`id`);--> statement-breakpoint
CREATE TRIGGER `project_inserted` AFTER INSERT ON `projects` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'project.changed', NEW.id, NEW.tenant_id, '[]', json_object('status', NEW.status);
END;
--> statement-breakpoint
CREATE TRIGGER `project_changed` AFTER UPDATE OF `status` ON `projects` FOR EACH ROW
WHEN OLD.status <> NEW.status
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'project.changed', NEW.id, NEW.tenant_id, '[]', json_object('status', NEW.status);
END;
--> statement-breakpoint
CREATE TRIGGER `project_deleted` AFTER DELETE ON `projects` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'project.changed', OLD.id, OLD.tenant_id, '[]', json_object('status', 'deleted');
END;
--> statement-breakpoint
CREATE TRIGGER `branch_inserted` AFTER INSERT ON `project_branches` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'branch.changed', NEW.project_id, NEW.tenant_id, iif(NEW.is_default, '[]', json_array(NEW.branch_name)), json_object('branch_id', NEW.id, 'branch_name', NEW.branch_name, 'status', NEW.status, 'expires_at', NEW.expires_at, 'labels', json(NEW.labels), 'blocks', json(NEW.blocks));
END;
--> statement-breakpoint
CREATE TRIGGER `branch_changed` AFTER UPDATE OF `status`, `expires_at`, `labels`, `blocks` ON `project_branches` FOR EACH ROW
WHEN OLD.status <> NEW.status OR OLD.expires_at IS NOT NEW.expires_at OR OLD.labels <> NEW.labels OR OLD.blocks <> NEW.blocks
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'branch.changed', NEW.project_id, NEW.tenant_id, iif(NEW.is_default, '[]', json_array(NEW.branch_name)), json_object('branch_id', NEW.id, 'branch_name', NEW.branch_name, 'status', NEW.status, 'expires_at', NEW.expires_at, 'labels', json(NEW.labels), 'blocks', json(NEW.blocks));
END;
--> statement-breakpoint
CREATE TRIGGER `branch_deleted` AFTER DELETE ON `project_branches` FOR EACH ROW
WHEN OLD.status <> 'deleted'
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'branch.changed', OLD.project_id, OLD.tenant_id, iif(OLD.is_default, '[]', json_array(OLD.branch_name)), json_object('branch_id', OLD.id, 'branch_name', OLD.branch_name, 'status', 'deleted', 'expires_at', OLD.expires_at, 'labels', json(OLD.labels), 'blocks', json(OLD.blocks));
END;
--> statement-breakpoint
CREATE TRIGGER `network_rule_inserted` AFTER INSERT ON `network_rules` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'network_rule.changed', NEW.project_id, NEW.tenant_id, (SELECT json_group_array(b.branch_name) FROM `project_branches` b WHERE b.id = NEW.branch_id AND NOT b.is_default), json_object('network_rule_id', NEW.id, 'branch_id', NEW.branch_id, 'cidr', NEW.cidr, 'status', 'pending');
END;
--> statement-breakpoint
CREATE TRIGGER `network_rule_applied` AFTER UPDATE OF `access_applied` ON `projects` FOR EACH ROW
WHEN OLD.access_applied <> NEW.access_applied
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'network_rule.changed', NEW.id, NEW.tenant_id, (SELECT json_group_array(b.branch_name) FROM `project_branches` b WHERE b.id = r.branch_id AND NOT b.is_default), json_object('network_rule_id', r.id, 'branch_id', r.branch_id, 'cidr', r.cidr, 'status', iif(r.revision <= NEW.access_applied, 'applied', 'pending'))
	FROM `network_rules` r
	WHERE r.project_id = NEW.id AND (r.revision <= OLD.access_applied) <> (r.revision <= NEW.access_applied)
	ORDER BY r.created_at, r.id;
END;
--> statement-breakpoint
CREATE TRIGGER `network_rule_deleted` AFTER DELETE ON `network_rules` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'network_rule.changed', OLD.project_id, OLD.tenant_id, (SELECT json_group_array(b.branch_name) FROM `project_branches` b WHERE b.id = OLD.branch_id AND NOT b.is_default), json_object('network_rule_id', OLD.id, 'branch_id', OLD.branch_id, 'cidr', OLD.cidr, 'status', 'deleted');
END;
--> statement-breakpoint
CREATE TRIGGER `job_inserted` AFTER INSERT ON `jobs` FOR EACH ROW
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `machine_id`, `data`)
	SELECT 'job.changed', NEW.project_id, NEW.tenant_id, (SELECT json_group_array(b.branch_name) FROM `project_branches` b WHERE b.id IN (SELECT value FROM json_each(coalesce(json_extract(NEW.input, '$.branchIds'), json_array(NEW.branch_id)))) AND NOT b.is_default), json_extract(NEW.input, '$.actor.machine.id'), json_object('job_id', NEW.id, 'branch_id', NEW.branch_id, 'kind', NEW.kind, 'status', NEW.status, 'steps', json(NEW.steps), 'error', json(NEW.error), 'attempts', NEW.attempts);
END;
--> statement-breakpoint
CREATE TRIGGER `job_changed` AFTER UPDATE OF `status`, `steps`, `error`, `attempts` ON `jobs` FOR EACH ROW
WHEN OLD.status <> NEW.status OR OLD.steps <> NEW.steps OR OLD.error IS NOT NEW.error OR OLD.attempts <> NEW.attempts
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `machine_id`, `data`)
	SELECT 'job.changed', NEW.project_id, NEW.tenant_id, (SELECT json_group_array(b.branch_name) FROM `project_branches` b WHERE b.id IN (SELECT value FROM json_each(coalesce(json_extract(NEW.input, '$.branchIds'), json_array(NEW.branch_id)))) AND NOT b.is_default), json_extract(NEW.input, '$.actor.machine.id'), json_object('job_id', NEW.id, 'branch_id', NEW.branch_id, 'kind', NEW.kind, 'status', NEW.status, 'steps', json(NEW.steps), 'error', json(NEW.error), 'attempts', NEW.attempts);
END;
--> statement-breakpoint
CREATE TRIGGER `storage_changed` AFTER UPDATE OF `storage_state` ON `projects` FOR EACH ROW
WHEN OLD.storage_state <> NEW.storage_state
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'storage.changed', NEW.id, NEW.tenant_id, '[]', json_object('state', NEW.storage_state, 'used_bytes', NEW.storage_used_bytes);
END;
