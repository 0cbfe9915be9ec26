import { defineConfig } from 'drizzle-kit';

export default defineConfig({
  dialect: 'sqlite',
  schema: ['schema', 'people-schema', 'company-schema', 'move-schema', 'history-schema'].map(
    (name) => `./edge/database/${name}.ts`,
  ),
  out: './edge/database/migrations',
});
