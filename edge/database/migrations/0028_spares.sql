ALTER TABLE `projects` ADD `spares` integer;--> statement-breakpoint
ALTER TABLE `snapshots` ADD `spares` integer;