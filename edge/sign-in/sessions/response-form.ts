import { z } from 'zod';

/** How a sign-in delivers its tokens: all in the response, or the refresh token in a cookie that scripts cannot read. */
export const ResponseForm = z.enum(['json', 'page']).default('json').meta({
  description:
    '`page` is for pages of this origin: the refresh token comes as a cookie that only `POST /api/v1/auth/session` accepts, instead of in the response.',
});
export type ResponseForm = z.output<typeof ResponseForm>;

export const ResponseQuery = z.strictObject({ response: ResponseForm });
