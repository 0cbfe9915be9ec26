import { integer } from 'drizzle-orm/sqlite-core';

/** Unix milliseconds. */
export const timestamp = (name: string) => integer(name, { mode: 'timestamp_ms' });
export const created = () => timestamp('created_at').notNull();
export const updated = () => timestamp('updated_at').notNull();
