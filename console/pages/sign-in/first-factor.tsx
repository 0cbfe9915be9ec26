import { useSearch } from '@tanstack/react-router';
import { Field } from '../../components/field.tsx';
import { SIGN_IN_TEXT } from '../../strings/sign-in.ts';
import { BackToSignIn, CodeField, NewPasswordField, StepForm, Way } from './form.tsx';
import { nextStep, type Step, signIn } from './steps.ts';

interface FormProps {
  go: (step: Step) => void;
}

const EmailField = () => (
  <Field label={SIGN_IN_TEXT.email} name="email" type="email" autoComplete="username" required autoFocus />
);

export const PasswordForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action={SIGN_IN_TEXT.signIn}
    submit={async (value) => nextStep(await signIn.password(value('email'), value('password')))}
    more={
      <>
        <Way go={go} to={{ name: 'mail' }}>
          {SIGN_IN_TEXT.withCode}
        </Way>
        <Way go={go} to={{ name: 'reset_start' }}>
          {SIGN_IN_TEXT.forgotten}
        </Way>
        <Way go={go} to={{ name: 'sign_up' }}>
          {SIGN_IN_TEXT.signUp}
        </Way>
      </>
    }
  >
    <EmailField />
    <Field
      label={SIGN_IN_TEXT.password}
      name="password"
      type="password"
      autoComplete="current-password"
      required
    />
  </StepForm>
);

export const MailForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action={SIGN_IN_TEXT.sendCode}
    more={<BackToSignIn go={go} />}
    submit={async (value) => {
      const email = value('email');
      return { name: 'code', email, challengeId: (await signIn.startMail(email)).challenge_id };
    }}
  >
    <p className="quiet">{SIGN_IN_TEXT.mailHint}</p>
    <EmailField />
  </StepForm>
);

export const SignUpForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action={SIGN_IN_TEXT.signUp}
    more={<BackToSignIn go={go} />}
    submit={async (value) => {
      const email = value('email');
      const { verification } = await signIn.signUp(value('name'), email, value('password'));
      return { name: 'code', email, challengeId: verification.challenge_id };
    }}
  >
    <Field label={SIGN_IN_TEXT.name} name="name" autoComplete="name" maxLength={100} required autoFocus />
    <Field label={SIGN_IN_TEXT.email} name="email" type="email" autoComplete="username" required />
    <NewPasswordField />
  </StepForm>
);

export const ResetStartForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action={SIGN_IN_TEXT.sendCode}
    more={<BackToSignIn go={go} />}
    submit={async (value) => {
      const email = value('email');
      return { name: 'reset', email, challengeId: (await signIn.startReset(email)).challenge_id };
    }}
  >
    <p className="quiet">{SIGN_IN_TEXT.resetHint}</p>
    <EmailField />
  </StepForm>
);

export function InvitationForm({ go }: FormProps) {
  const { invitation } = useSearch({ from: '/sign-in' });
  return (
    <StepForm
      go={go}
      action={SIGN_IN_TEXT.join}
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
      <Field
        label={SIGN_IN_TEXT.invitation}
        name="invitation_id"
        defaultValue={invitation}
        className="mono"
        required
      />
      <Field label={SIGN_IN_TEXT.email} name="email" type="email" autoComplete="username" required />
      <Field label={SIGN_IN_TEXT.name} name="name" autoComplete="name" maxLength={100} required />
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
    action={SIGN_IN_TEXT.continue}
    submit={async (value) => nextStep(await signIn.code(step.email, step.challengeId, value('code')))}
    more={<BackToSignIn go={go} />}
  >
    <p className="quiet">{SIGN_IN_TEXT.codeSent(step.email)}</p>
    <CodeField />
  </StepForm>
);

export const ResetForm = ({ step, go }: MailedProps<'reset'>) => (
  <StepForm
    go={go}
    action={SIGN_IN_TEXT.setPassword}
    submit={async (value) => {
      const { email, challengeId: challenge_id } = step;
      await signIn.reset({ email, challenge_id, code: value('code'), new_password: value('password') });
      return { name: 'password' };
    }}
    more={<BackToSignIn go={go} />}
  >
    <p className="quiet">{SIGN_IN_TEXT.codeSent(step.email)}</p>
    <CodeField />
    <NewPasswordField label={SIGN_IN_TEXT.newPassword} />
  </StepForm>
);
