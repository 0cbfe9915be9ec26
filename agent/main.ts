import { runControlTool } from './control-tool.ts';

process.exit(await runControlTool(process.argv.slice(2)));
