import { defineConfig } from 'drizzle-kit';

export default defineConfig({
  dialect: 'sqlite',
  schema: [
    './edge/database/schema.ts',
    './edge/database/account-schema.ts',
    './edge/database/event-schema.ts',
  ],
  out: './edge/database/migrations',
});
