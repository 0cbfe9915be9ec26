import { Field } from '../../components/field.tsx';
import { BackToSignIn, CodeField, NewPasswordField, StepForm, Way } from './form.tsx';
import { nextStep, type Step, signIn } from './steps.ts';

interface FormProps {
  go: (step: Step) => void;
}

const EmailField = () => (
  <Field label="E-mail address" name="email" type="email" autoComplete="username" required autoFocus />
);

export const PasswordForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action="Sign in"
    submit={async (value) => nextStep(await signIn.password(value('email'), value('password')))}
    more={
      <>
        <Way go={go} to={{ name: 'mail' }}>
          Sign in with a code
        </Way>
        <Way go={go} to={{ name: 'reset_start' }}>
          Forgot password?
        </Way>
        <Way go={go} to={{ name: 'sign_up' }}>
          Create an account
        </Way>
      </>
    }
  >
    <EmailField />
    <Field label="Password" name="password" type="password" autoComplete="current-password" required />
  </StepForm>
);

export const MailForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action="Send a code"
    more={<BackToSignIn go={go} />}
    submit={async (value) => {
      const email = value('email');
      return { name: 'code', email, challengeId: (await signIn.startMail(email)).challenge_id };
    }}
  >
    <p className="quiet">We mail a code to your address. It expires in 10 minutes.</p>
    <EmailField />
  </StepForm>
);

export const SignUpForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action="Create an account"
    more={<BackToSignIn go={go} />}
    submit={async (value) => {
      const email = value('email');
      const { verification } = await signIn.signUp(value('name'), email, value('password'));
      return { name: 'code', email, challengeId: verification.challenge_id };
    }}
  >
    <Field label="Your name" name="name" autoComplete="name" maxLength={100} required autoFocus />
    <Field label="E-mail address" name="email" type="email" autoComplete="username" required />
    <NewPasswordField />
  </StepForm>
);

export const ResetStartForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action="Send a code"
    more={<BackToSignIn go={go} />}
    submit={async (value) => {
      const email = value('email');
      return { name: 'reset', email, challengeId: (await signIn.startReset(email)).challenge_id };
    }}
  >
    <p className="quiet">We mail a code with which you set a new password. All your sessions end.</p>
    <EmailField />
  </StepForm>
);

export function InvitationForm({ go, invitation }: FormProps & { invitation: string | undefined }) {
  return (
    <StepForm
      go={go}
      action="Join"
      more={<BackToSignIn go={go} />}
      submit={async (value) => {
        const body = {
          email: value('email'),
          invitation_id: value('invitation_id'),
          code: value('code'),
          name: value('name'),
          password: value('password'),
        };
        return nextStep(await signIn.accept(body));
      }}
    >
      <Field label="Invitation" name="invitation_id" defaultValue={invitation} className="mono" required />
      <Field label="E-mail address" name="email" type="email" autoComplete="username" required />
      <Field label="Your name" name="name" autoComplete="name" maxLength={100} required />
      <NewPasswordField />
      <CodeField />
    </StepForm>
  );
}

interface MailedProps<Name extends Step['name']> {
  step: Extract<Step, { name: Name }>;
  go: (step: Step) => void;
}

export const CodeForm = ({ step, go }: MailedProps<'code'>) => (
  <StepForm
    go={go}
    action="Continue"
    submit={async (value) => nextStep(await signIn.code(step.email, step.challengeId, value('code')))}
    more={<BackToSignIn go={go} />}
  >
    <p className="quiet">
      If {step.email} can be used here, a mail with a code of six digits is on its way. It expires in 10
      minutes.
    </p>
    <CodeField />
  </StepForm>
);

export const ResetForm = ({ step, go }: MailedProps<'reset'>) => (
  <StepForm
    go={go}
    action="Set the password"
    submit={async (value) => {
      const { email, challengeId: challenge_id } = step;
      await signIn.reset({ email, challenge_id, code: value('code'), new_password: value('password') });
      return { name: 'password' };
    }}
    more={<BackToSignIn go={go} />}
  >
    <p className="quiet">
      If {step.email} can be used here, a mail with a code of six digits is on its way. It expires in 10
      minutes.
    </p>
    <CodeField />
    <NewPasswordField label="New password" />
  </StepForm>
);
