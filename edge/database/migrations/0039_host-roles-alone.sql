-- Unused since 0036_standby-safety: `role` says it.
ALTER TABLE `hosts` DROP COLUMN `fenced`;--> statement-breakpoint
-- Unused since 0036_standby-safety: the standby of a closing primary is its only one.
ALTER TABLE `hosts` DROP COLUMN `yields_to`;--> statement-breakpoint
-- Unused since 0036_standby-safety: the projects of the host say it.
ALTER TABLE `hosts` DROP COLUMN `owes_notice`;
