import { app } from './app.ts';
import { descriptionOf } from './documentation/describe.ts';

/** Prints the OpenAPI document, for `dev/client-types.ts`. */
console.log(JSON.stringify(descriptionOf(app)));
