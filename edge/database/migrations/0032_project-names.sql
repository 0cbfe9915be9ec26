ALTER TABLE `projects` ADD `dns_name` text;--> statement-breakpoint
ALTER TABLE `projects` ADD `dns_target` text;